// The stream of changes: connects, resumes where it broke off, and says since when it is stale.

const SILENCE_MS = 25000; // the server says something every ten seconds
const RETRY_MS = 3000;

/**
 * Follow the stream for as long as the page is open.
 *
 * handlers.reset() forgets everything; piece(key, value) changes one document, value undefined
 * removes it; synced(now) and beat(now) bring the server's time; live() and stale(since, why)
 * tell the state of the connection.
 */
export function follow(handlers) {
  let source = null;
  let lastId = "";
  let heardAt = new Date();
  let watchdog = 0;

  function heard() {
    heardAt = new Date();
    clearTimeout(watchdog);
    watchdog = setTimeout(() => again("no word from the scheduler"), SILENCE_MS);
  }

  function again(why) {
    handlers.stale(heardAt, why);
    source.close();
    clearTimeout(watchdog);
    watchdog = setTimeout(open, RETRY_MS);
  }

  function on(name, act) {
    source.addEventListener(name, (event) => {
      heard();
      act(JSON.parse(event.data), event);
    });
  }

  function open() {
    source = new EventSource(lastId ? `events?since=${encodeURIComponent(lastId)}` : "events");
    on("reset", () => handlers.reset());
    on("piece", (piece, event) => {
      lastId = event.lastEventId;
      handlers.piece(piece.key, piece.value);
    });
    on("synced", (told) => {
      handlers.live();
      handlers.synced(told.now);
    });
    on("beat", (told) => handlers.beat(told.now));
    source.addEventListener("error", () => {
      // A browser that reconnects by itself sends the last id by itself; else we do.
      if (source.readyState === EventSource.CLOSED) again("the scheduler does not answer");
      else handlers.stale(heardAt, "the connection broke");
    });
  }

  open();
}
