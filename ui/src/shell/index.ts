export * from "./actions";
