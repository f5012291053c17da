import { ChevronDown, Power, ShieldCheck, SquareTerminal } from "lucide-react";
import { Icon } from "@/components";

/** What this server is about, as a picture: a worker dies, another goes on. */
export function SignInScene() {
  return (
    <div className="in-scene" aria-hidden="true">
      <div className="you">Rename the column, and migrate what is there.</div>
      <details className="tool" open>
        <summary tabIndex={-1}>
          <Icon of={SquareTerminal} />
          <b>Ran</b>
          <code>chatd migrate --dry-run</code>
          <span className="meta">
            1.2 s <Icon of={ChevronDown} size="sm" />
          </span>
        </summary>
        <pre className="out">
          2 migrations, <span className="ok">0 conflicts</span>
        </pre>
      </details>
      <div className="mark">
        <Icon of={Power} className="danger" />
        <span>
          <b>Worker a1 was killed</b> in mid-sentence
        </span>
      </div>
      <div className="mark">
        <Icon of={ShieldCheck} className="ok" />
        <span>
          <b>Recovered on worker b2</b> after 2.1 s
        </span>
      </div>
      <div className="md">
        <p>
          The column is renamed in both tables. Old clients keep working, because the view still offers the former na
          <span className="caret" />
        </p>
      </div>
    </div>
  );
}
