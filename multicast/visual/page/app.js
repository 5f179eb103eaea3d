/** What the page knows, and what can be done with it. Panes are drawn from this alone. */

import { readAddress, writeAddress } from "./address.js";
import { pause } from "./controls.js";
import { Recording } from "./recording.js";
import { Connection, Problem } from "./socket.js";

export class App {
  /** on: { draw(), say(sentence), lost(sentence) } */
  constructor(on) {
    this.on = on;
    this.recording = null;
    this.step = 0;
    this.live = false;
    this.exported = false;
    this.catalogue = null;
    this.scenario = null;
    this.fragment = null;
    this.chosen = null;
    this.highlight = null;
    this.destinations = new Set();
    this.playing = false;
    this.pace = "2 steps/s";
    this.view = { axis: "time", future: true, housekeeping: false, hiddenTypes: new Set(), tab: "processes" };
    this.possible = new Map();
    this.connection = new Connection((sentence) => this.disconnected(sentence));
  }

  // -- what is shown ---------------------------------------------------------------------------------------------------

  /** Whose inside is shown: the chosen process, else the one at which the step happened. */
  get process() {
    if (this.recording.processes.includes(this.chosen)) return this.chosen;
    return (
      this.recording.linesOf(this.step).find((line) => line.process !== undefined)?.process ??
      this.recording.processes[0]
    );
  }

  get canAct() {
    return this.live && this.connection.open;
  }

  get canGoOn() {
    return this.step < this.recording.steps || this.canAct;
  }

  get enabled() {
    return this.possible.get(this.step)?.enabled ?? null;
  }

  get links() {
    return this.live ? (this.possible.get(this.step)?.links ?? null) : null;
  }

  /** Another run in the place of this one. */
  show(recording, { step = 0, live = false, fragment = null, scenario = null }) {
    const same =
      this.recording && JSON.stringify(this.recording.header.groups) === JSON.stringify(recording.header.groups);
    Object.assign(this, { recording, live, fragment, scenario, highlight: null, playing: false });
    if (!same) {
      this.chosen = null;
      this.destinations = new Set(recording.groups.map((group) => group.name));
    }
    this.view.hiddenTypes = new Set();
    this.possible.clear();
    this.step = Math.max(0, Math.min(step, recording.steps));
  }

  // -- steps -----------------------------------------------------------------------------------------------------------

  /** Show the run after step k. */
  go(k) {
    this.step = Math.max(0, Math.min(k, this.recording.steps));
    this.on.draw();
    writeAddress(this.fragment, this.step, false);
    this.look();
  }

  forward() {
    return this.step < this.recording.steps ? this.go(this.step + 1) : this.run("step");
  }

  nextDelivery() {
    const step = this.recording.nextDelivery(this.step);
    return step === null ? this.run("delivery") : this.go(step);
  }

  end() {
    return this.step < this.recording.steps ? this.go(this.recording.steps) : this.run("end");
  }

  violation() {
    const found = this.recording.violations[0];
    if (found) this.go(found.step);
    else this.on.say("No checker has found a violation in this run.");
  }

  // -- pace ------------------------------------------------------------------------------------------------------------

  play() {
    if (this.playing) return this.stop();
    if (!this.canGoOn) this.go(0);
    this.playing = true;
    this.on.draw();
    this.wait();
  }

  stop() {
    this.playing = false;
    clearTimeout(this.timer);
    this.on.draw();
  }

  wait() {
    clearTimeout(this.timer);
    this.timer = setTimeout(
      async () => {
        const before = this.step;
        await this.forward();
        if (!this.playing) return;
        if (this.step === before || !this.canGoOn) this.stop();
        else this.wait();
      },
      pause(this.recording, this.step, this.pace),
    );
  }

  // -- the server ------------------------------------------------------------------------------------------------------

  /** Open what `content` names; a Problem leaves everything as it is. */
  async open(content, at = null, isNew = true) {
    const answer = await this.connection.request("open", content);
    const scenario = content.scenario ?? answer.fragment?.match(/^scenario=([^&]*)$/)?.[1] ?? null;
    this.show(new Recording(answer.recording), {
      step: at ?? answer.at ?? 0,
      live: answer.live,
      fragment: answer.fragment,
      scenario,
    });
    this.keepPossible(answer, answer.recording.steps);
    this.on.draw();
    writeAddress(this.fragment, this.step, isNew);
    this.look();
  }

  /** What the address names, else the first scenario, else a small world. */
  async openAddress() {
    const [fragment, step] = readAddress();
    if (fragment) return this.open({ fragment }, step, false);
    const first = this.catalogue.scenarios?.[0];
    return this.open(first ? { scenario: first.id } : { setup: this.catalogue.setup }, null, false);
  }

  act(action) {
    return this.grow("do", { at: this.step, actions: [action] });
  }

  run(until) {
    return this.canAct ? this.grow("run", { at: this.step, until }) : undefined;
  }

  async grow(op, content) {
    if (this.busy) return;
    this.busy = true;
    try {
      const cuts = content.at < this.recording.steps;
      const answer = await this.connection.request(op, content);
      const before = this.recording.steps;
      this.recording = this.recording.grown(answer);
      for (const step of [...this.possible.keys()]) if (step >= answer.from) this.possible.delete(step);
      this.keepPossible(answer, answer.steps);
      this.step = answer.steps;
      if (answer.fragment) this.fragment = answer.fragment;
      if (op === "run" && answer.steps === before && !cuts)
        this.on.say("Nothing more happens by itself: everything is delivered.");
      if (this.scenario && cuts) this.scenario = null;
      this.on.draw();
      writeAddress(this.fragment, this.step, cuts);
    } catch (problem) {
      this.complain(problem);
    } finally {
      this.busy = false;
    }
  }

  keepPossible({ enabled, links }, step) {
    if (enabled || links) this.possible.set(step, { enabled, links });
  }

  /** Ask what may happen at the step that is shown. */
  async look() {
    const { step, recording } = this;
    if (!this.canAct || this.possible.has(step) || this.looking) return;
    this.looking = true;
    try {
      const answer = await this.connection.request("look", { at: step });
      if (this.recording === recording) this.keepPossible(answer, step);
    } catch (problem) {
      this.complain(problem);
      return;
    } finally {
      this.looking = false;
    }
    if (this.step === step) this.on.draw();
    else this.look();
  }

  complain(problem) {
    if (!(problem instanceof Problem)) throw problem;
    this.playing = false;
    this.on.say(problem.message);
    if (this.recording) this.on.draw();
  }

  disconnected(sentence) {
    this.playing = false;
    this.on.lost(sentence);
    if (this.recording) this.on.draw();
  }

  /** Connect anew, and go on where this page was: its run is in the fragment. */
  async reconnect() {
    await this.connection.connect();
    if (!this.recording) return this.openAddress();
    if (this.fragment) return this.open({ fragment: this.fragment }, this.step, false);
    this.on.draw();
  }
}
