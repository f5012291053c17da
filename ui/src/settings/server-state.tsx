/** At the foot of the list: the server's version and whether it is ready. */
import { CircleCheck, TriangleAlert } from "lucide-react";
import { useQuery } from "@tanstack/react-query";
import { Icon } from "@/components";

interface Readiness {
  ready: boolean;
  version: string | null;
}

async function readReadiness(): Promise<Readiness> {
  const reply = await fetch("/readyz", { headers: { Accept: "application/json" } });
  const told: unknown = await reply.json().catch(() => null);
  const version =
    typeof told === "object" && told !== null && "version" in told && typeof told.version === "string" ? told.version : null;
  return { ready: reply.ok, version };
}

export function ServerState() {
  const { data, error } = useQuery({ queryKey: ["readiness"], queryFn: readReadiness, refetchInterval: 30_000 });
  const bad = error !== null || data?.ready === false;
  return (
    <div className="sidebar-foot">
      <span className="tone-muted ui-grow">chatd{data?.version ? ` ${data.version}` : ""}</span>
      {(data !== undefined || bad) && (
        <span className={bad ? "ui-state tone-danger" : "ui-state tone-ok"}>
          <Icon of={bad ? TriangleAlert : CircleCheck} size="sm" />
          {bad ? "Not ready" : "All well"}
        </span>
      )}
    </div>
  );
}
