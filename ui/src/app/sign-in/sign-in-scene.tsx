import { ChevronDown, Power, ShieldCheck, SquareTerminal } from "lucide-react";
import { Icon } from "@/components";

/** What this server is about, as a picture: a worker dies, another goes on. */
export function SignInScene() {
  return (
    <div className="signin-scene" aria-hidden="true">
      <div className="timeline-prompt">Rename the column, and migrate what is there.</div>
      <details className="tool-card" open>
        <summary tabIndex={-1}>
          <Icon of={SquareTerminal} />
          <b>Ran</b>
          <code>chatd migrate --dry-run</code>
          <span className="ui-meta">
            1.2 s <Icon of={ChevronDown} size="sm" />
          </span>
        </summary>
        <pre className="tool-output">
          2 migrations, <span className="tone-ok">0 conflicts</span>
        </pre>
      </details>
      <div className="timeline-mark">
        <Icon of={Power} className="tone-danger" />
        <span>
          <b>Worker a1 was killed</b> in mid-sentence
        </span>
      </div>
      <div className="timeline-mark">
        <Icon of={ShieldCheck} className="tone-ok" />
        <span>
          <b>Recovered on worker b2</b> after 2.1 s
        </span>
      </div>
      <div className="markdown-text">
        <p>
          The column is renamed in both tables. Old clients keep working, because the view still offers the former na
          <span className="markdown-caret" />
        </p>
      </div>
    </div>
  );
}
