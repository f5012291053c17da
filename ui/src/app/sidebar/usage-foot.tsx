import { useQuery } from "@tanstack/react-query";
import { Settings2 } from "lucide-react";
import { Link } from "wouter";
import { api } from "@/api/client";
import { Icon, Meter, Tooltip } from "@/components";

const PERIODS = { day: "today", week: "this week", month: "this month" } as const;

/** Dollars from millionths: "$1.20", and "$10" where nothing follows the point. */
export function dollars(micros: number, whole = false): string {
  const amount = micros / 1_000_000;
  return `$${whole && Number.isInteger(amount) ? String(amount) : amount.toFixed(2)}`;
}

/** What was spent, of how much, and the way to the settings. */
export function UsageFoot({ children }: { children?: React.ReactNode }) {
  const { data } = useQuery({
    queryKey: ["usage-status"],
    queryFn: ({ signal }) => api.GET("/api/v1/usage-limits/status", { signal }),
    refetchInterval: 60_000,
  });
  const spent = dollars(data?.current_spend_micros ?? 0);
  const limit = data?.spend_limit_micros ?? null;
  const period = PERIODS[data?.period ?? "day"];
  return (
    <div className="sidebar-foot">
      <div className="sidebar-usage">
        <div>
          <span>
            <b>{spent}</b> {limit === null ? period : `of ${dollars(limit, true)} ${period}`}
          </span>
        </div>
        {limit !== null && <Meter label={`${spent} spent of ${dollars(limit, true)} ${period}`} value={(data?.current_spend_micros ?? 0) / 1e6} max={limit / 1e6} />}
      </div>
      <Tooltip text="Settings" side="top">
        <Link className="ui-icon-button" href="/settings/general" aria-label="Settings">
          <Icon of={Settings2} />
        </Link>
      </Tooltip>
      {children}
    </div>
  );
}
