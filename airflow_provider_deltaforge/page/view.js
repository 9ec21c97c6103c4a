// Which view of the page is open: it is named by the address.

import { useQuery } from "./kit.js";

// `go` shows another view, `href` is its address; a value of null takes a part out.
export const useView = () => {
  const [query, setQuery] = useQuery();
  const changed = (changes) => {
    const next = new URLSearchParams(query);
    for (const [key, value] of Object.entries(changes)) {
      if (value) next.set(key, value);
      else next.delete(key);
    }
    return next;
  };
  return {
    get: (key) => query.get(key),
    go: (changes, options) => setQuery(changed(changes), options),
    href: (changes) => `${globalThis.location.pathname}?${changed(changes)}`,
  };
};
