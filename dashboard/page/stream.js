// Stream of the visible view. A hidden tab closes it, because a browser has only six connections per host.

export class Stream {
  constructor(onView, onState) {
    this.onView = onView;
    this.onState = onState;
    this.address = "";
    this.source = null;
    this.view = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
  }

  show(address) {
    this.address = address;
    this.close();
    this.open();
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  open() {
    if (this.source || !this.address) return;
    const source = new EventSource(this.address);
    this.source = source;
    this.onState("connecting");
    source.addEventListener("open", () => this.onState("live"));
    source.addEventListener("view", (event) => this.take(JSON.parse(event.data)));
    source.addEventListener("rows", (event) => this.takeRows(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      this.onState("interrupted");
      if (source.readyState !== EventSource.CLOSED || this.source !== source) return;
      this.source = null; // the browser reconnects by itself only if the answer was a stream
      setTimeout(() => this.open(), 3000);
    });
  }

  takeRows(news) {
    news.rows = news.rows.map((row) => (typeof row === "number" ? this.view.rows[row] : row));
    this.take(news);
  }

  take(view) {
    this.view = view;
    this.onView(view);
  }
}
