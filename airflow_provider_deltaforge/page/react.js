// The React of this page: Airflow's, or behind `deltaforge serve` the one in vendor/.

export const {
  createContext, createElement: h, Fragment, useCallback, useContext, useEffect, useId, useMemo, useRef, useState,
} = globalThis.React;
