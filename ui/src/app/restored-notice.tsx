/** Says that this deployment is a restored copy that waits; an administrator confirms it here. */
import { useQueryClient } from "@tanstack/react-query";
import { History } from "lucide-react";
import { api } from "@/api/client";
import { type Me, queryKeys } from "@/api/queries";
import { Button, Icon } from "@/components";
import { toastOnError } from "@/platform/toasts";

export function RestoredNotice({ me }: { me: Me }) {
  const client = useQueryClient();
  const confirm = async () => {
    await api.POST("/api/v1/restore/confirm");
    await client.invalidateQueries({ queryKey: queryKeys.me });
  };
  return (
    <div className="app-restored" role="status">
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
