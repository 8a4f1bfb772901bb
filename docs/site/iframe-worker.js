// Browsers start no Worker in a page that was opened as a file, and the search needs one. There, a hidden frame takes
// its place: the frame runs the worker's script, and messages go between the frame and the page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const worker = new URL(url, document.baseURI);
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      this.scope = frame.contentWindow;
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = this.scope.document.createElement("script");
          script.src = new URL(source, worker);
          script.onload = resolve;
          script.onerror = () => reject(new Error(`${source} cannot be loaded`));
          this.scope.document.head.append(script);
        });
      this.scope.importScripts = async (...sources) => {
        for (const source of sources) await load(source);
      };
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      load(worker).then(() => {
        for (const data of this.waiting) this.send(data);
        this.waiting = null;
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.send(data);
    }

    send(data) {
      this.scope.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
