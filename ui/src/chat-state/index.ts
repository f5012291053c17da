export * from "./events";
export { addOlderPage, type OlderPage } from "./messages";
export * from "./outbox";
export { type ChatFeed, dropPartialGroup, initialFeed, initialState, isBusy, reduce, reduceAll } from "./reducer";
export * from "./types";
