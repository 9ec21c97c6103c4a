// The page *DeltaForge* in Airflow's UI, and the tab of the same name on a DAG. No build step: Airflow
// lends its React, its router and its components, and the browser loads these files as they are.

import { h, useMemo } from "./react.js";
import { Select, useQuery } from "./kit.js";
import { App } from "./app.js";
import { Client, clientOf, useAnswer } from "./client.js";
import { NoConnection, NoPipelines, SignedOut, WrongConnection } from "./first_steps.js";
import { Loading, Muted } from "./parts.js";

const DEFAULT = "deltaforge_default";
const CONNECTIONS_EVERY_MS = 60000;

// The page's files lie in `static/`, beside the API, wherever Airflow is mounted.
const BASE = new URL("../api/", import.meta.url);
const STYLES = new URL("page.css", import.meta.url).href;

if (!document.querySelector(`link[href="${STYLES}"]`)) {
  document.head.append(Object.assign(document.createElement("link"), { href: STYLES, rel: "stylesheet" }));
}

const Store = ({ choose, connId, connections }) => {
  if (connections.length < 2) return h(Muted, null, `connection ${connId}`);
  const ids = connections.includes(connId) ? connections : [connId, ...connections];
  return h(Select, { change: choose, label: "Connection of the state store", options: ids.map((id) => [id, id]), value: connId });
};

const explainFor = (connId) => (error) => {
  if (error.status === 401) return h(SignedOut, null);
  if (error.code === "CONNECTION_NOT_FOUND") return h(NoConnection, { connId, message: error.message });
  return error.code === "WRONG_CONNECTION" ? h(WrongConnection, { message: error.message }) : null;
};

const Chosen = ({ dagId }) => {
  const [query, setQuery] = useQuery();
  const known = useAnswer("connections", {}, CONNECTIONS_EVERY_MS);
  const connections = known.data ?? [];
  const connId = query.get("conn_id") ?? connections[0] ?? DEFAULT;
  const client = useMemo(() => clientOf({ base: BASE, query: { conn_id: connId } }), [connId]);
  if (!known.data && !known.error && !query.get("conn_id")) return h(Loading, null);
  // A pipeline of one store is unknown in another.
  const choose = (id) => setQuery(new URLSearchParams({ conn_id: id }));
  return h(Client.Provider, { value: client }, h(App, {
    aside: h(Store, { choose, connId, connections }), empty: h(NoPipelines, { connId, dagId }), explain: explainFor(connId),
    key: connId, only: dagId, title: dagId ? null : "DeltaForge",
  }));
};

const anyStore = clientOf({ base: BASE });

const Page = ({ dagId }) =>
  h("div", { className: "df" }, h(Client.Provider, { value: anyStore }, h(Chosen, { dagId })));

// Airflow looks for the name of the react app, and for this one after it has loaded the module.
globalThis.AirflowPlugin = Page;
globalThis.DeltaForge = Page;
