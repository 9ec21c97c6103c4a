// Who keeps a pipeline's driver running.

export const supervisorOf = ({ ops: { owner }, supervisor }) => {
  if (supervisor) return `DAG ${supervisor.dag_id}`;
  if (!owner) return "nobody";
  const [kind, host] = owner.split(":");
  const words = { cli: "deltaforge run", serve: "deltaforge serve" }[kind];
  return words ? `${words} on ${host}` : owner;
};

// Of a task of Airflow the DAG; the run is in the request's name.
export const askerOf = (by) => (by.startsWith("airflow:") ? `DAG ${by.slice("airflow:".length).split("/")[0]}` : by);
