// The components that every view is made of: in Airflow its own Chakra ones, elsewhere plain HTML.
// Both files export the same names with the same properties.

const kit = await import(globalThis.ChakraUI ? "./kit_chakra.js" : "./kit_plain.js");

export const {
  Alert, Badge, Button, Checkbox, Code, Dialog, Heading, Input, Link, Progress, Select, Spinner, table, Tabs, Textarea,
  useQuery,
} = kit;
