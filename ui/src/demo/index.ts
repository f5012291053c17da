export { CoachMark } from "./coach-mark";
export { DemoPanel } from "./demo-panel";
export { FirstScreen } from "./first-screen";
