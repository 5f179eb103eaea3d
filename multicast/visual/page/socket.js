/** The connection to the server: requests with answers, in order. Each page has a world of its own there. */

/** The server's sentence about a request that could not be. */
export class Problem extends Error {}

export class Connection {
  /** lost: called once when the connection, which was there, is no more. */
  constructor(lost) {
    this.lost = lost;
    this.waiting = new Map();
    this.next = 1;
    this.socket = null;
  }

  get open() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  connect() {
    const socket = (this.socket = new WebSocket(
      `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`,
    ));
    socket.onmessage = (event) => this.receive(JSON.parse(event.data));
    return new Promise((resolve, reject) => {
      socket.onopen = () => resolve();
      socket.onclose = () => {
        reject(new Problem("The server does not answer. Is `python -m multicast.visual` still running?"));
        this.close(socket);
      };
    });
  }

  close(socket) {
    if (socket !== this.socket) return;
    this.socket = null;
    for (const { reject } of this.waiting.values())
      reject(new Problem("The connection was lost before the answer came."));
    this.waiting.clear();
    this.lost(this.farewell ?? "The connection to the server is lost.");
    this.farewell = null;
  }

  receive(answer) {
    const asked = this.waiting.get(answer.id);
    if (!asked) {
      if (answer.kind === "problem") this.farewell = answer.text;
      return;
    }
    this.waiting.delete(answer.id);
    if (answer.kind === "problem") asked.reject(new Problem(answer.text));
    else asked.resolve(answer);
  }

  /** The answer; a Problem if the server refuses, or cannot be reached. */
  request(op, content) {
    if (!this.open) return Promise.reject(new Problem("There is no connection to the server."));
    const id = this.next++;
    this.socket.send(JSON.stringify({ ...content, op, id }));
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }
}
