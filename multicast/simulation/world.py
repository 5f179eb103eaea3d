"""A simulated world: real engines, sessions and journals on a simulated network, disk and clock.

Theory of operation. Time is an integer count of microseconds that starts at `EPOCH_US`. One heap holds everything that is
going to happen, ordered by (time, sequence); nothing else decides an order, so a seed fixes a run. Every process is a
`Node`: an `Engine` (protocol and application), a production `Journal` on a `SimulatedDisk`, and the ends of its links
(`multicast.session`). Inputs of one instant (or of a drawn stretch of `Conditions.batch_us`) become one batch, as in the
live host. A batch's journal bytes are appended at once and synced after a drawn time; batches that arrive meanwhile are
merged into the next sync. What the engine holds back leaves after that. A crash drops everything but the disk, and on the disk
it drops what was not synced (`SimulatedDisk.crash`). Timers come from `Batch.wake_at`: nothing polls.

Use:

    def make_process(pid, rng, disk):                   # at every start of a life; all state of the old one is gone
        return protocol, application, checkpoint        # checkpoint: engine.Checkpoint, or None: replay the whole journal

    world = World(topology, make_process, seed)         # Conditions(...) for other networks and disks
    world.start()                                       # every process, links connected
    world.submit(pid, AppMessage(...))                  # multicast(m)
    world.request(pid, request, callback)               # Application.on_request; callback(answer), or callback(None) when
                                                        # the process is down or dies before it answers: outcome unknown
    world.at(time_us, callback) / world.after(us, callback)
    world.run_for(us) / world.run_until(time_us) / world.run_while(condition, limit_us) -> bool
    world.crash(pid), world.restart(pid), world.pause(pid, us), world.jump_clock(pid, us), world.slow_disk(pid, us or 0)
    world.network.block([(a, b), ...]), .unblock([...]) / .unblock_all(), .reset(a, b), .slow(a, b, extra_us)
    world.heal()                                        # no faults any more, everybody up
    world.node(pid).engine / .up / .clock()             # engine.application is `node.application`'s observed proxy
    world.dump_journals(directory)                      # DIR/replicas/<pid>/journal/<segments>, as a live cluster writes them
    world.digest()                                      # of everything that happened so far

Scripted mode: `World(..., script=f)` with `f(sender, receiver, message) -> delay in us, or None for the usual one`, asked for
every message between two processes, decoded (protocol, application and host messages alike). FIFO per link stays: a
message never arrives before an earlier one of the same link.

`observers` (see `Observer`) hear of every life, submission, delivery and frame; checkers are observers.
"""
