// Stream of the visible view. A hidden tab closes it, because a browser has only six connections per host.

const SILENT_MS = 45_000; // the server sends an event every 15 seconds, if nothing else

export class Stream {
  constructor(onView, onState) {
    this.onView = onView;
    this.onState = onState;
    this.address = "";
    this.source = null;
    this.view = null;
    this.silence = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
  }

  show(address) {
    this.address = address;
    this.close();
    this.open();
  }

  close() {
    clearTimeout(this.silence);
    this.source?.close();
    this.source = null;
  }

  // A connection whose other end is gone or hangs stays open without an error: it is closed, and opened again.
  listen() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      this.close();
      this.onState("interrupted");
      setTimeout(() => this.open(), 3000);
    }, SILENT_MS);
  }

  open() {
    if (this.source || !this.address || document.hidden) return; // a timer may end while the tab is hidden
    const source = new EventSource(this.address);
    this.source = source;
    this.onState("connecting");
    this.listen();
    for (const name of ["open", "view", "rows", "missing", "alive"]) source.addEventListener(name, () => this.listen());
    source.addEventListener("open", () => this.onState("live"));
    source.addEventListener("view", (event) => this.take(JSON.parse(event.data)));
    source.addEventListener("rows", (event) => this.takeRows(JSON.parse(event.data)));
    source.addEventListener("missing", (event) => this.take(null, JSON.parse(event.data).troubles));
    source.addEventListener("error", () => {
      this.onState("interrupted");
      if (source.readyState !== EventSource.CLOSED || this.source !== source) return;
      this.close(); // the browser reconnects by itself only if the answer was a stream
      setTimeout(() => this.open(), 3000);
    });
  }

  takeRows(news) {
    news.rows = news.rows.map((row) => (typeof row === "number" ? this.view.rows[row] : row));
    this.take(news);
  }

  take(view, troubles = view.troubles) {
    this.view = view;
    this.onView(view, troubles);
  }
}
