/** Says that this deployment is a restored copy that waits; an administrator confirms it here. */
import { useQueryClient } from "@tanstack/react-query";
import { History } from "lucide-react";
import { type CSSProperties, useLayoutEffect } from "react";
import { api } from "@/api/client";
import { type Me, queryKeys } from "@/api/queries";
import { Button, Icon } from "@/components";
import { toastOnError } from "@/platform/toasts";

// The styles are here: the first load of nearly all pages does not need them.
const HEIGHT = "52px";
const STYLE: CSSProperties = { position: "fixed", inset: "0 0 auto", zIndex: 42, height: HEIGHT, margin: 0, borderRadius: 0, overflow: "hidden" };

/** The page makes room for it. */
function useRoom(): void {
  useLayoutEffect(() => {
    const page = document.documentElement.style;
    page.setProperty("--notice", HEIGHT);
    document.body.style.paddingTop = HEIGHT;
    return () => {
      page.removeProperty("--notice");
      document.body.style.paddingTop = "";
    };
  }, []);
}

export function RestoredNotice({ me }: { me: Me }) {
  const client = useQueryClient();
  useRoom();
  const confirm = async () => {
    await api.POST("/api/v1/restore/confirm");
    await client.invalidateQueries({ queryKey: queryKeys.me });
  };
  return (
    <div className="app-offline" role="status" style={STYLE}>
      <Icon of={History} size="sm" />
      <span className="ui-grow">
        Restored from a backup of {new Date(me.restored_from ?? 0).toLocaleString([], { dateStyle: "short", timeStyle: "short" })}. Nothing runs until an
        administrator confirms it.
      </span>
      {me.user.role === "admin" && (
        <Button size="xs" onClick={() => toastOnError(confirm())}>
          Confirm
        </Button>
      )}
    </div>
  );
}
