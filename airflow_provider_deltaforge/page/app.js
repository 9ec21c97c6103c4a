// The page: every pipeline of a state store, or one of them.

import { h, useState } from "./react.js";
import { Button, Heading } from "./kit.js";
import { Server, useAnswer, useRates } from "./client.js";
import { Create } from "./create.js";
import { Fleet, fleetWords } from "./fleet.js";
import { Loading, Muted, Row, Stack, Trouble } from "./parts.js";
import { Pipeline } from "./pipeline.js";
import { useView } from "./view.js";

const VERSION_EVERY_MS = 60000;
const NOTHING = {};

// `aside`: what the place adds beside the title; `explain`: its own words for an error, or null;
// `empty`: what is shown where there is no pipeline; `only`: one DAG's pipelines.
export const App = ({ aside, empty, explain = () => null, only, title = "DeltaForge" }) => {
  const view = useView();
  const server = useAnswer("version", {}, VERSION_EVERY_MS);
  const [creating, setCreating] = useState(false);
  const { data, error } = useAnswer("pipelines", { dag_id: only, ops: true });
  const rateOf = useRates(data);
  // Whoever must sign in again, or choose another store, sees nothing of before meanwhile.
  const own = error && explain(error);
  const single = only && data?.length === 1 ? data[0].name : null;
  const selected = view.get("pipeline") ?? single;
  const open = (name) => {
    setCreating(false);
    view.go({ pipeline: name, tab: null });
  };
  const create = server.data?.starts_drivers && h(Button, { kind: "solid", onClick: () => setCreating(true) }, "New pipeline…");
  return h(Server.Provider, { value: server.data ?? NOTHING }, h(Stack, null,
    h(Row, { apart: true },
      h(Row, null, title && h(Heading, { level: selected ? 2 : 1 }, title), data && !own && h(Muted, null, error ? "not up to date" : fleetWords(data))),
      h(Row, null, aside, !own && !selected && data && create)),
    own || h(Stack, null,
      error && h(Trouble, { error, stale: data !== null }),
      !data && !error && h(Loading, null),
      data && selected && h(Pipeline, { isSingle: selected === single, key: selected, name: selected, rateOf }),
      data && !selected && (data.length ? h(Fleet, { isOfDag: Boolean(only), pipelines: data, rateOf }) : empty),
      creating && h(Create, { close: () => setCreating(false), open }))));
};
