// The gateway's pictures: server-sent events, read with fetch, as an EventSource sends no header.

const PATIENCE_MS = 6000;
const RETRY_MS = 1500;

export class Refused extends Error {}

export async function ask(path, token, options = {}) {
  const answer = await fetch(path, {
    ...options,
    headers: { authorization: `Bearer ${token}` },
    cache: "no-store",
    credentials: "omit",
  });
  if (answer.status === 401) throw new Refused("That is not this gateway's admin token.");
  if (!answer.ok) {
    const said = await answer.json().catch(() => null);
    throw new Error(said?.error?.message ?? `the gateway answered ${answer.status}`);
  }
  return answer;
}

// Until the token is refused or `stop` is called. `shown` gets pictures, `line` what became of the
// connection: "live", or why it is not.
export function watch(token, { shown, line, refused }) {
  let going = true;
  let abort = new AbortController();

  async function once() {
    abort = new AbortController();
    // A connection that says nothing is no connection, though nobody has closed it.
    let alarm = setTimeout(() => abort.abort(), PATIENCE_MS);
    try {
      const answer = await ask("../admin/live", token, { signal: abort.signal });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) throw new Error("the gateway has ended the connection");
        clearTimeout(alarm);
        alarm = setTimeout(() => abort.abort(), PATIENCE_MS);
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        // Of several that have piled up, as in a tab that slept, only the last is of now.
        const last = events.filter((event) => event.startsWith("data: ")).pop();
        if (last && going) {
          line("live");
          shown(JSON.parse(last.slice(6)));
        }
      }
    } finally {
      clearTimeout(alarm);
    }
  }

  (async () => {
    while (going) {
      try {
        await once();
      } catch (error) {
        if (!going) return;
        if (error instanceof Refused) return refused(error.message);
        line(error.name === "AbortError" ? "the gateway is silent" : "the gateway is away");
      }
      await new Promise((again) => setTimeout(again, RETRY_MS));
    }
  })();

  return () => {
    going = false;
    abort.abort();
  };
}
