export * from "./events";
export * from "./types";
export { addOlderPage, type OlderPage } from "./messages";
export {
  dropPartialGroup,
  initialFeed,
  initialState,
  isBusy,
  reduce,
  reduceAll,
  type ChatFeed,
} from "./reducer";
export * from "./outbox";
