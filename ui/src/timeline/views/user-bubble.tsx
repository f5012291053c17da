/** What the user said, with files and quoted lines; or what is on its way. */
import { CloudOff, CornerRightDown } from "lucide-react";
import { Button, Icon, Spinner } from "@/components";
import { LongText } from "@/text/long-text";
import { useTimelineActions } from "../actions";
import { FileList, ReferenceList } from "../files";
import type { PendingSend, UserRow } from "../rows/row";

export function UserBubble({ row }: { readonly row: UserRow }) {
  return (
    <>
      <div className={row.pending === null ? "timeline-prompt" : "timeline-prompt is-pending"}>
        <UserText text={row.text} />
        {row.references.length > 0 && <ReferenceList references={row.references} />}
        {row.files.length > 0 && <FileList files={row.files} />}
      </div>
      {row.isSteering && (
        <div className="timeline-prompt-meta">
          <Icon of={CornerRightDown} size="sm" />
          Steered the running turn
        </div>
      )}
      {row.pending !== null && <PendingNote pending={row.pending} />}
    </>
  );
}

/** Users write plain text; only `code` is set apart. */
function UserText({ text }: { readonly text: string }) {
  return (
    <LongText
      text={text}
      render={(shown) =>
        shown.split(/(`[^`\n]+`)/).map((piece, index) => (index % 2 === 1 ? <code key={index}>{piece.slice(1, -1)}</code> : piece))
      }
    />
  );
}

function PendingNote({ pending }: { readonly pending: PendingSend }) {
  const { discardSend, editSend } = useTimelineActions();
  if (!pending.isKept) {
    return (
      <div className="timeline-prompt-meta">
        <Spinner />
        Sending
      </div>
    );
  }
  return (
    <div className="timeline-prompt-meta" role="status">
      <Icon of={CloudOff} size="sm" />
      <span>Kept here. It is sent when the server answers.</span>
      <Button size="xs" variant="quiet" onClick={() => editSend(pending.id)}>
        Edit
      </Button>
      <Button size="xs" variant="quiet" onClick={() => discardSend(pending.id)}>
        Discard
      </Button>
    </div>
  );
}
