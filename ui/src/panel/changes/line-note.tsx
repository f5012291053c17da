import { type KeyboardEvent, useState } from "react";
import { Button } from "@/components";

interface LineNoteProps {
  readonly place: string;
  readonly onAdd: (text: string) => void;
  readonly onCancel: () => void;
}

/** A comment on a line. It goes into the message that is being written, and nowhere else. */
export function LineNote({ place, onAdd, onCancel }: LineNoteProps) {
  const [text, setText] = useState("");
  const add = () => onAdd(text.trim());
  const press = (event: KeyboardEvent) => {
    event.stopPropagation();
    if (event.key === "Escape") {
      event.preventDefault();
      onCancel();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      add();
    }
  };
  return (
    <div className="changes-note-row">
      <div className="changes-note">
        <textarea autoFocus rows={2} aria-label={`Comment on ${place}`} placeholder="What should change here?" value={text} onChange={(event) => setText(event.target.value)} onKeyDown={press} />
        <footer>
          <span className="tone-subtle ui-grow">{place}. Goes into your next message.</span>
          <Button size="xs" variant="quiet" onClick={onCancel}>
            Cancel
          </Button>
          <Button size="xs" variant="primary" onClick={add}>
            Add to message
          </Button>
        </footer>
      </div>
    </div>
  );
}
