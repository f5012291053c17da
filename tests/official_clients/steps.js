// What a scenario asks of the test that runs it: one line of JSON for each step, one line back.
import { createInterface } from "node:readline";

const replies = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Have the test do this step, and return what it gives. */
export async function ask(step, fields = {}) {
  console.log(JSON.stringify({ step, ...fields }));
  const { value, done } = await replies.next();
  if (done) throw new Error(`The test ended in the step ${step}.`);
  return JSON.parse(value);
}

/** Run the scenario that the command line names. */
export async function main(scenarios) {
  const [name, given] = process.argv.slice(2);
  await scenarios[name](JSON.parse(given));
  process.exit(0);
}
