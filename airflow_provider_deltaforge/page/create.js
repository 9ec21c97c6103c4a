// A new pipeline from a pasted document.

import { h, Fragment, useState } from "./react.js";
import { Alert, Button, Dialog, Textarea } from "./kit.js";
import { pipelinePath, useChange } from "./client.js";
import { Field, Refusal, Stack, Words } from "./parts.js";

const EXAMPLE = `apiVersion: deltaforge/v1
kind: Pipeline
metadata:
  name: orders
  tenant: acme
spec:
  source:
    type: mysql
    config:
      id: shop
      dsn: mysql://cdc:\${MYSQL_PASSWORD}@db:3306/shop
      tables: [shop.orders]
  sinks:
    - type: kafka
      config: {id: kafka, brokers: kafka:9092, topic: orders}
`;

const PATCH = `spec:
  batch: {max_ms: 500}
  sinks:
    - config: {id: kafka, topic: orders-v2}
`;

const YAML = "application/yaml";

// A part of a document, laid over the one that is kept.
export const Change = ({ close, name }) => {
  const [text, setText] = useState("");
  const [changed, setChanged] = useState(null);
  const [run, busy, error] = useChange();
  const send = () => run(async (client) => {
    const answer = await client.sendText(pipelinePath(name), text, YAML, "PATCH");
    if (answer.warnings.length) setChanged(answer);
    else close();
  });
  return h(Dialog, { close, title: `Change ${name}`,
    footer: changed ? h(Button, { kind: "solid", onClick: close }, "Close") : h(Fragment, null, h(Button, { onClick: close }, "Cancel"),
      h(Button, { busy: busy !== null, disabled: !text.trim(), kind: "solid", onClick: send }, "Change it")) },
  changed ? changed.warnings.map((warning) => h(Alert, { key: warning, tone: "warning" }, warning)) : h(Stack, null,
    h("p", null, h(Words, { text: "Write the keys that change, from the top; `null` removes one. Sinks and processors are found by their `id`, and `$remove: true` takes one out. A pipeline that runs is started anew, once the whole was found to be right." })),
    h(Field, { label: "What changes" },
      h(Textarea, { onChange: ({ target }) => setText(target.value), placeholder: PATCH, rows: 10, spellCheck: false, value: text })),
    h(Refusal, { error })));
};

export const Create = ({ close, open }) => {
  const [text, setText] = useState("");
  const [verdict, setVerdict] = useState(null);
  const [created, setCreated] = useState(null);
  const [run, busy, error] = useChange();
  const write = (value) => {
    setText(value);
    setVerdict(null);
  };
  const check = () => run(async (client) => setVerdict(await client.sendText("validate", text, YAML)), "check");
  const make = () => run(async (client) => {
    const answer = await client.sendText("pipelines", text, YAML);
    if (answer.warnings.length) setCreated(answer);
    else open(answer.name);
  }, "make");
  if (created) {
    return h(Dialog, { close: () => open(created.name), footer: h(Button, { kind: "solid", onClick: () => open(created.name) }, "Go to it"), title: `${created.name} was created` },
      created.warnings.map((warning) => h(Alert, { key: warning, tone: "warning" }, warning)));
  }
  return h(Dialog, { close, title: "New pipeline",
    footer: h(Fragment, null, h(Button, { onClick: close }, "Cancel"),
      h(Button, { busy: busy === "check", disabled: !text.trim() || busy !== null, onClick: check }, "Check"),
      h(Button, { busy: busy === "make", disabled: !text.trim() || busy !== null, kind: "solid", onClick: make }, "Create and start")) },
  h(Stack, null,
    h(Field, { hint: "YAML or JSON. Write secrets as ${NAME}: the environment of the server has them.", label: "Document" },
      h(Textarea, { onChange: ({ target }) => write(target.value), placeholder: EXAMPLE, rows: 18, spellCheck: false, value: text })),
    verdict && h(Alert, { title: "The document is right", tone: "success" },
      `Pipeline ${verdict.pipeline}: ${verdict.source_type} to ${verdict.sink_count} sink${verdict.sink_count === 1 ? "" : "s"}.`),
    h(Refusal, { error })));
};
