// Who keeps a pipeline's driver running.

export const supervisorOf = ({ ops: { owner }, supervisor }) => {
  if (supervisor) return `DAG ${supervisor.dag_id}`;
  if (!owner) return "nobody";
  const [kind, host] = owner.split(":");
  const words = { cli: "deltaforge run", serve: "deltaforge serve" }[kind];
  return words ? `${words} on ${host}` : owner;
};
