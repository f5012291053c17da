/** Whether the page is connected, for badges and banners. */
import { useMemo, useSyncExternalStore } from "react";
import { useConnectionOwner } from "./provider";
import type { SocketStatus } from "./socket";

export interface ConnectionStatus extends SocketStatus {
  retryNow: () => void;
}

export function useConnection(): ConnectionStatus {
  const connection = useConnectionOwner();
  const status = useSyncExternalStore(connection.onStatus, () => connection.status);
  return useMemo(() => ({ ...status, retryNow: connection.retryNow }), [status, connection]);
}
