// The page: every pipeline of a state store, or one of them.

import { h, useState } from "./react.js";
import { Button, Heading } from "./kit.js";
import { useAnswer, useClient, useRates } from "./client.js";
import { Create } from "./create.js";
import { Fleet, fleetWords } from "./fleet.js";
import { Loading, Muted, Row, Stack, Trouble } from "./parts.js";
import { Pipeline } from "./pipeline.js";
import { useView } from "./view.js";

// `aside`: what the place adds beside the title; `explain`: its own words for an error, or null;
// `empty`: what is shown where there is no pipeline; `only`: one DAG's pipelines.
export const App = ({ aside, empty, explain = () => null, only, title = "DeltaForge" }) => {
  const view = useView();
  const { startsDrivers } = useClient();
  const [creating, setCreating] = useState(false);
  const { data, error } = useAnswer("pipelines", { dag_id: only, ops: true });
  const rateOf = useRates(data);
  const words = error && (explain(error) ?? h(Trouble, { error, stale: data !== null }));
  const single = only && data?.length === 1 ? data[0].name : null;
  const selected = view.get("pipeline") ?? single;
  const open = (name) => {
    setCreating(false);
    view.go({ pipeline: name, tab: null });
  };
  const create = startsDrivers && h(Button, { kind: "solid", onClick: () => setCreating(true) }, "New pipeline…");
  return h(Stack, null,
    h(Row, { apart: true },
      h(Row, null, title && h(Heading, { level: selected ? 2 : 1 }, title), data && h(Muted, null, error ? "not up to date" : fleetWords(data))),
      h(Row, null, aside, !selected && data && create)),
    words,
    !data && !error && h(Loading, null),
    selected && (data || error) && !(error && !data) && h(Pipeline, { isSingle: selected === single, key: selected, name: selected, rateOf }),
    data && !selected && (data.length ? h(Fleet, { isOfDag: Boolean(only), pipelines: data, rateOf }) : empty),
    creating && h(Create, { close: () => setCreating(false), open }));
};
