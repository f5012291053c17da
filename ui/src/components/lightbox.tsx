/** A picture in full size over the page. Loaded with the first picture that is opened. */
import "@/styles/lightbox.css";
import { Download, X } from "lucide-react";
import { Dialog as Primitive } from "radix-ui";
import { type KeyboardEvent, useState } from "react";
import { IconButton } from "./button";
import { Icon } from "./icon";

interface LightboxProps {
  readonly url: string;
  readonly name: string;
  /** The name of the file that a download makes. */
  readonly file?: string;
  readonly onClose: () => void;
  /** To the picture before (-1) or after (1) this one. */
  readonly onMove?: (step: -1 | 1) => void;
}

export function Lightbox({ url, name, file = name, onClose, onMove }: LightboxProps) {
  // The button that was pressed: there is no trigger that the dialog knows.
  const [before] = useState(() => document.activeElement);
  const returnFocus = (event: Event) => {
    event.preventDefault();
    if (before instanceof HTMLElement) before.focus();
  };
  const move = (event: KeyboardEvent) => {
    if (event.key === "ArrowLeft") onMove?.(-1);
    if (event.key === "ArrowRight") onMove?.(1);
  };
  return (
    <Primitive.Root open onOpenChange={(isOpen) => !isOpen && onClose()}>
      <Primitive.Portal>
        <Primitive.Overlay className="ui-lightbox">
          <Primitive.Content aria-describedby={undefined} className="ui-lightbox-box" onKeyDown={move} onCloseAutoFocus={returnFocus}>
            <header>
              <Primitive.Title className="ui-ellipsis ui-grow">{name}</Primitive.Title>
              <a className="ui-icon-button" href={url} download={file} aria-label={`Download ${file}`}>
                <Icon of={Download} />
              </a>
              <Primitive.Close asChild>
                <IconButton icon={X} label="Close" tooltip={false} />
              </Primitive.Close>
            </header>
            <img src={url} alt={name} />
          </Primitive.Content>
        </Primitive.Overlay>
      </Primitive.Portal>
    </Primitive.Root>
  );
}
