#!/bin/sh
# One run of what lies in the volumes of all replicas: `audit.sh [ARGUMENT...]`, see `python -m spark_etl audit --help`.
# CLUSTER, JOURNALS, RUN: the configuration, a directory with one per replica, and where to put the run together.
set -eu
cluster=${CLUSTER:-/cluster} journals=${JOURNALS:-/journals} run=${RUN:-/tmp/run}
mkdir -p "$run/replicas" "$run/archive/replicas"
cp "$cluster/cluster.json" "$run/"
for home in "$journals"/*; do
    for part in replicas archive/replicas; do
        for found in "$home/$part"/*; do
            if [ -d "$found" ]; then ln -sfn "$found" "$run/$part/"; fi
        done
    done
done
exec python -m spark_etl audit "$run" "$@"
