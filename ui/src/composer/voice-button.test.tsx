import { act, cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { VoiceButton } from "./voice-button";

afterEach(cleanup);

class FakeRecognition {
  static last: FakeRecognition;
  onresult: ((event: unknown) => void) | null = null;
  onerror: ((event: unknown) => void) | null = null;
  onend: (() => void) | null = null;
  start = vi.fn();
  stop = vi.fn(() => this.onend?.());
  abort = vi.fn();
  constructor() {
    FakeRecognition.last = this;
  }
}

it("there is no button where the browser cannot listen", () => {
  render(<VoiceButton onText={() => undefined} />);
  expect(screen.queryByRole("button")).toBeNull();
});

it("phrases are taken once they are final, and a second press ends it; leaving aborts", () => {
  vi.stubGlobal("webkitSpeechRecognition", FakeRecognition);
  const heard: string[] = [];
  const { unmount } = render(<VoiceButton onText={(text) => heard.push(text)} />);
  fireEvent.click(screen.getByRole("button", { name: "Dictate" }));
  const phrase = (transcript: string, isFinal: boolean) => Object.assign([{ transcript }], { isFinal });
  act(() => FakeRecognition.last.onresult?.({ resultIndex: 1, results: [phrase("old", true), phrase(" fix the test ", true), phrase("and", false)] }));
  expect(heard).toEqual(["fix the test"]);
  fireEvent.click(screen.getByRole("button", { name: "Stop dictation", pressed: true }));
  expect(FakeRecognition.last.stop).toHaveBeenCalledOnce();
  fireEvent.click(screen.getByRole("button", { name: "Dictate" }));
  unmount();
  expect(FakeRecognition.last.abort).toHaveBeenCalledOnce();
});
