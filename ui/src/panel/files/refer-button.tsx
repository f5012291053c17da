/** Puts lines of the file into the message that is being written. */
import { TextQuote } from "lucide-react";
import { type SubmitEvent, useState } from "react";
import { Button, IconButton, Popover, TextField } from "@/components";
import { insertReference } from "@/platform/actions";
import { toast } from "@/platform/toasts";
import type { LineRange } from "./file-lines";

/** Of one reference: the model reads it with every message. */
const MAX_REFERENCE_CHARS = 20_000;

interface ReferButtonProps {
  readonly path: string;
  readonly lines: readonly { text: string }[];
  readonly chosen: LineRange | null;
}

export function ReferButton({ path, lines, chosen }: ReferButtonProps) {
  const [isOpen, setOpen] = useState(false);
  const [error, setError] = useState("");
  const range = chosen ?? { from: 1, to: Math.min(lines.length, 20) };

  const refer = (event: SubmitEvent<HTMLFormElement>) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget);
    const [from, to] = [Number(data.get("from")), Number(data.get("to"))];
    if (!(Number.isInteger(from) && Number.isInteger(to) && from >= 1 && to >= from && to <= lines.length)) {
      setError(`Choose lines between 1 and ${lines.length.toLocaleString("en")}.`);
      return;
    }
    const content = lines.slice(from - 1, to).map((line) => line.text).join("\n");
    if (content.length > MAX_REFERENCE_CHARS) {
      setError(`These lines have more than ${MAX_REFERENCE_CHARS.toLocaleString("en")} characters. Choose fewer.`);
      return;
    }
    insertReference({ type: "file-reference", file_name: path, start_line: from, end_line: to, content });
    setOpen(false);
    setError("");
    toast(`${path}, lines ${from} to ${to}, is in your message.`);
  };

  return (
    <Popover
      label="Refer to lines"
      align="end"
      open={isOpen}
      onOpenChange={setOpen}
      trigger={<IconButton icon={TextQuote} label="Refer to lines in your message" tooltip={!isOpen} />}
    >
      <form className="files-refer" onSubmit={refer} key={`${range.from}-${range.to}`}>
        <TextField label="First line" name="from" type="number" min={1} max={lines.length} defaultValue={range.from} />
        <TextField label="Last line" name="to" type="number" min={1} max={lines.length} defaultValue={range.to} />
        {error !== "" && <p role="alert">{error}</p>}
        <Button type="submit" variant="primary" size="sm">
          Add to message
        </Button>
      </form>
    </Popover>
  );
}
