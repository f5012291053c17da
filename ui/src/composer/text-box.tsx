import { useEffect, useLayoutEffect, type ClipboardEvent, type KeyboardEvent, type RefObject } from "react";

interface TextBoxProps {
  value: string;
  placeholder: string;
  label: string;
  /** The element, for focus. */
  boxRef: RefObject<HTMLTextAreaElement | null>;
  onChange: (text: string) => void;
  onKeyDown: (event: KeyboardEvent<HTMLTextAreaElement>) => void;
  onPaste: (event: ClipboardEvent<HTMLTextAreaElement>) => void;
  /** Of a menu that completes what is typed. */
  controls?: string | undefined;
  active?: string | undefined;
}

const MAX_PART_OF_WINDOW = 0.4;

/** A text box as high as its text, up to a part of the window. */
export function TextBox({ value, placeholder, label, boxRef, onChange, onKeyDown, onPaste, controls, active }: TextBoxProps) {
  useLayoutEffect(() => fit(boxRef.current), [boxRef, value]);
  useEffect(() => {
    const again = () => fit(boxRef.current);
    window.addEventListener("resize", again);
    return () => window.removeEventListener("resize", again);
  }, [boxRef]);
  return (
    <textarea
      id="box"
      ref={boxRef}
      className="composer-text"
      rows={1}
      value={value}
      placeholder={placeholder}
      aria-label={label}
      aria-controls={controls}
      aria-activedescendant={active}
      aria-autocomplete={controls === undefined ? undefined : "list"}
      onChange={(event) => onChange(event.target.value)}
      onKeyDown={onKeyDown}
      onPaste={onPaste}
    />
  );
}

function fit(box: HTMLTextAreaElement | null): void {
  if (box === null) return;
  box.style.height = "auto";
  const most = Math.max(80, window.innerHeight * MAX_PART_OF_WINDOW);
  box.style.height = `${Math.min(box.scrollHeight, most)}px`;
  box.style.overflowY = box.scrollHeight > most ? "auto" : "hidden";
}
