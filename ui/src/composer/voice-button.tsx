/** Dictation by the browser's own speech recognition, where it has one. Some browsers send the sound to their maker. */
import { Mic } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { IconButton } from "@/components";
import { announce, toast } from "@/platform/toasts";

interface SpeechResults {
  readonly resultIndex: number;
  readonly results: ArrayLike<ArrayLike<{ readonly transcript: string }> & { readonly isFinal: boolean }>;
}

interface Recognition {
  continuous: boolean;
  interimResults: boolean;
  lang: string;
  onresult: ((event: SpeechResults) => void) | null;
  onerror: ((event: { readonly error: string }) => void) | null;
  onend: (() => void) | null;
  start: () => void;
  stop: () => void;
  abort: () => void;
}

type Maker = new () => Recognition;

const makerOf = (): Maker | undefined => {
  const found = window as unknown as { SpeechRecognition?: Maker; webkitSpeechRecognition?: Maker };
  return found.SpeechRecognition ?? found.webkitSpeechRecognition;
};

const PROBLEMS: Readonly<Record<string, string>> = {
  "not-allowed": "The browser does not allow the microphone for this page. Allow it in the settings of the site.",
  "service-not-allowed": "The browser does not allow dictation for this page.",
  "audio-capture": "No microphone was found.",
  network: "The speech service of the browser cannot be reached.",
  "language-not-supported": "The browser cannot dictate in its language.",
};

/** Nothing where the browser cannot listen. `onText` gets each phrase once it is final. */
export function VoiceButton({ onText }: { readonly onText: (text: string) => void }) {
  const [Maker] = useState(makerOf);
  const [isOn, setOn] = useState(false);
  const active = useRef<Recognition | null>(null);
  const taker = useRef(onText);
  useEffect(() => {
    taker.current = onText;
  });
  useEffect(() => () => active.current?.abort(), []);
  if (Maker === undefined) return null;
  const start = () => {
    const made = new Maker();
    made.continuous = true;
    made.interimResults = false;
    made.lang = navigator.language;
    made.onresult = (event) => {
      for (let at = event.resultIndex; at < event.results.length; at += 1) {
        const result = event.results[at];
        const words = result?.isFinal === true ? (result[0]?.transcript.trim() ?? "") : "";
        if (words !== "") taker.current(words);
      }
    };
    made.onerror = ({ error }) => {
      if (error !== "aborted" && error !== "no-speech") toast({ text: PROBLEMS[error] ?? `Dictation ended: ${error}.`, tone: "danger" });
    };
    made.onend = () => {
      active.current = null;
      setOn(false);
      announce("Dictation off");
    };
    active.current = made;
    try {
      made.start();
      setOn(true);
      announce("Dictation on");
    } catch {
      active.current = null;
      toast({ text: "Dictation could not be started. Try again.", tone: "danger" });
    }
  };
  return <IconButton icon={Mic} label={isOn ? "Stop dictation" : "Dictate"} pressed={isOn} onClick={() => (isOn ? active.current?.stop() : start())} />;
}
