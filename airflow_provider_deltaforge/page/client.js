// Asks the REST API, every two seconds while somebody looks.

import { createContext, useCallback, useContext, useEffect, useRef, useState } from "./react.js";

const EVERY_MS = 2000;
const EASE = 4;
const PATIENCE_MS = 30000;
const HISTORY = 90;
const RATE_OVER_MS = 10000;

// An error as the API writes it, or as this page does where nothing was answered.
class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { code, status });
  }
}

// `base` ends in a slash; `query` is part of every address, `token` of every request.
export const clientOf = ({ base, query = {}, token = null }) => {
  let ahead = 0;
  const address = (path, more = {}) => {
    const url = new URL(path, base);
    for (const [key, value] of Object.entries({ ...query, ...more })) {
      if (value !== null && value !== undefined && value !== "") url.searchParams.set(key, value);
    }
    return url.href;
  };
  const ask = async (url, { body, method = "GET", signal, type = "application/json" } = {}) => {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    if (method !== "GET") headers["Content-Type"] = type;
    const late = AbortSignal.timeout(PATIENCE_MS);
    let response;
    try {
      response = await fetch(url, { body, credentials: "same-origin", headers, method,
        signal: signal ? AbortSignal.any([signal, late]) : late });
    } catch (error) {
      if (signal?.aborted) throw error;
      const slow = error.name === "TimeoutError";
      throw new ApiError(0, slow ? "SLOW" : "NO_ANSWER", slow ? `It did not answer within ${PATIENCE_MS / 1000} s.` : "It does not answer.");
    }
    const date = Date.parse(response.headers.get("Date"));
    if (date) ahead = date - Date.now();
    if (response.status === 204) return null;
    const answer = await response.json().catch(() => null);
    if (response.ok && answer !== null) return answer;
    // Airflow's own refusals are in `detail`.
    const { code = "ERROR", detail, message = typeof detail === "string" ? detail : `HTTP ${response.status}` } = answer ?? {};
    throw new ApiError(response.status, code, message);
  };
  return {
    address,
    get: (path, more) => ask(address(path, more)),
    // A clock that runs a little beside the server's must not show wrong ages.
    now: () => (Math.abs(ahead) > 2000 ? Date.now() + ahead : Date.now()),
    poll: ask,
    send: (method, path, body = {}, more = {}) =>
      ask(address(path, more), { body: method === "DELETE" ? undefined : JSON.stringify(body), method }),
    sendText: (path, text, type, method = "POST") => ask(address(path), { body: text, method, type }),
  };
};

export const Client = createContext(null);

export const useClient = () => useContext(Client);

// What the server behind the page can, as its route `version` says: start drivers, ask sources and sinks.
export const Server = createContext({});

export const useServer = () => useContext(Server);

export const pipelinePath = (name, ...parts) => ["pipelines", name, ...parts].map(encodeURIComponent).join("/");

// The latest answer of a path, kept while it is asked again; `error` says why it may be old. A path
// of null asks nothing.
export const useAnswer = (path, query = {}, everyMs = EVERY_MS) => {
  const client = useClient();
  const url = path === null ? null : client.address(path, query);
  const [state, setState] = useState({ url, data: null, error: null });
  const again = useRef(() => {});
  useEffect(() => {
    if (url === null) return undefined;
    let [timer, live, busy] = [null, true, false];
    const leaving = new AbortController();
    const look = async () => {
      clearTimeout(timer);
      if (busy || document.hidden) return;
      busy = true;
      const began = performance.now();
      try {
        const data = await client.poll(url, { signal: leaving.signal });
        if (live) setState({ url, data, error: null });
      } catch (error) {
        // What was known stays on the page, unless it was of something else.
        if (live) setState((old) => ({ url, data: old.url === url ? old.data : null, error }));
      }
      busy = false;
      // A server that has much to do for an answer is asked less often.
      if (live) timer = setTimeout(look, Math.max(everyMs, EASE * (performance.now() - began)));
    };
    again.current = look;
    document.addEventListener("visibilitychange", look);
    look();
    return () => {
      live = false;
      clearTimeout(timer);
      leaving.abort();
      document.removeEventListener("visibilitychange", look);
    };
  }, [client, url, everyMs]);
  const refresh = useCallback(() => again.current(), []);
  const current = state.url === url ? state : { data: null, error: null };
  return { ...current, refresh };
};

// Sends one change at a time: `[run, busy, error]`; `run` returns whether it succeeded.
export const useChange = () => {
  const client = useClient();
  const [busy, setBusy] = useState(null);
  const [error, setError] = useState(null);
  const run = async (change, name = "change") => {
    setBusy(name);
    setError(null);
    try {
      await change(client);
      return true;
    } catch (refusal) {
      setError(refusal);
      return false;
    } finally {
      setBusy(null);
    }
  };
  return [run, busy, error];
};

// Events per second by pipeline, from two looks some seconds apart.
export const useRates = (pipelines) => {
  const histories = useRef(new Map());
  const seen = useRef(null);
  if (pipelines && seen.current !== pipelines) {
    seen.current = pipelines;
    const at = performance.now();
    for (const { name, ops } of pipelines) {
      const known = histories.current.get(name) ?? [];
      const last = known.at(-1);
      const fallen = last && (ops.events < last.events || ops.generation !== last.generation);
      const next = [...(fallen ? [] : known), { at, events: ops.events, generation: ops.generation }];
      histories.current.set(name, next.slice(-HISTORY));
    }
  }
  return (name) => {
    const known = histories.current.get(name) ?? [];
    const last = known.at(-1);
    const first = known.find(({ at }) => last.at - at <= RATE_OVER_MS);
    const seconds = last && first ? (last.at - first.at) / 1000 : 0;
    return seconds > 0 ? (last.events - first.events) / seconds : null;
  };
};
