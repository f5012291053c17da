import { describe, expect, it } from "vitest";
import { EventReader } from "./event-stream";

const STREAM = 'retry: 1000\n\ndata: {"a":1}\nid: 7\n\n: keep-alive\n\nevent: build\ndata: first\ndata: second\n\n';

describe("a stream of events", () => {
  it("gives names, ids and data of several lines", () => {
    expect(new EventReader().push(STREAM)).toEqual([
      { event: "message", data: '{"a":1}', id: "7" },
      { event: "build", data: "first\nsecond", id: null },
    ]);
  });

  it("gives the same events however the text is cut", () => {
    const reader = new EventReader();
    expect(Array.from(STREAM).flatMap((char) => reader.push(char))).toEqual(new EventReader().push(STREAM));
  });

  it("keeps an event back until it is complete", () => {
    const reader = new EventReader();
    expect(reader.push("data: half")).toEqual([]);
    expect(reader.push("\n\n")).toEqual([{ event: "message", data: "half", id: null }]);
  });
});
