// Asks the plug-in's endpoints, every two seconds while somebody looks.

const { useCallback, useEffect, useRef, useState } = globalThis.React;

const EVERY_MS = 2000;
const HISTORY = 90;
const RATE_OVER_MS = 10000;

// The page's files lie in `static/` beside the endpoints, wherever Airflow is mounted.
const BASE = new URL("../", import.meta.url);

export const address = (path, query = {}) => {
  const url = new URL(path, BASE);
  for (const [key, value] of Object.entries(query)) {
    if (value) url.searchParams.set(key, value);
  }
  return url.href;
};

export const ask = async (url, options = {}) => {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw { code: "no_answer", detail: "Airflow's API server does not answer." };
  }
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  if (response.status === 401) throw { code: "signed_out", detail: "Your session has ended." };
  const detail = typeof body.detail === "string" ? body.detail : `HTTP ${response.status}`;
  throw { code: body.code ?? (response.status === 403 ? "forbidden" : "error"), detail };
};

export const change = (name, verb, connId) =>
  ask(address(`pipelines/${encodeURIComponent(name)}/${verb}`, { conn_id: connId }), {
    body: "{}",
    headers: { "Content-Type": "application/json" },
    method: "POST",
  });

// The latest answer of `url`, kept while it is asked again; `error` says why it may be old.
export const useAnswer = (url, everyMs = EVERY_MS) => {
  const [state, setState] = useState({ url, data: null, error: null });
  const again = useRef(() => {});
  useEffect(() => {
    if (url === null) return undefined;
    let [timer, live, busy] = [null, true, false];
    const stopping = new AbortController();
    const look = async () => {
      clearTimeout(timer);
      if (busy || document.hidden) return;
      busy = true;
      try {
        const data = await ask(url, { signal: stopping.signal });
        if (live) setState({ url, data, error: null });
      } catch (error) {
        // What was known stays on the page, unless it was of something else.
        if (live) setState((old) => ({ url, data: old.url === url ? old.data : null, error }));
      }
      busy = false;
      if (live) timer = setTimeout(look, everyMs);
    };
    again.current = look;
    document.addEventListener("visibilitychange", look);
    look();
    return () => {
      live = false;
      clearTimeout(timer);
      stopping.abort();
      document.removeEventListener("visibilitychange", look);
    };
  }, [url, everyMs]);
  const refresh = useCallback(() => again.current(), []);
  const current = state.url === url ? state : { data: null, error: null };
  return { ...current, refresh };
};

// Events per second by pipeline, from two looks some seconds apart; the server keeps no rate.
export const useRates = (answer) => {
  const histories = useRef(new Map());
  if (answer) {
    for (const { name, events, generation } of answer.pipelines) {
      const known = histories.current.get(name) ?? [];
      const last = known.at(-1);
      const fallen = last && (events < last.events || generation !== last.generation);
      const kept = fallen ? [] : known;
      if (!last || fallen || answer.now_ms > last.at) {
        const next = [...kept, { at: answer.now_ms, events, generation }];
        histories.current.set(name, next.slice(-HISTORY));
      }
    }
  }
  return (name) => {
    const known = histories.current.get(name) ?? [];
    const last = known.at(-1);
    const first = known.find(({ at }) => last.at - at <= RATE_OVER_MS);
    const seconds = last && first ? (last.at - first.at) / 1000 : 0;
    const steps = known.slice(1).map(({ at, events }, index) => {
      const before = known[index];
      return (events - before.events) / ((at - before.at) / 1000);
    });
    return { now: seconds > 0 ? (last.events - first.events) / seconds : null, steps };
  };
};
