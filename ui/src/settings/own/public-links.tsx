/** Public links: those of the user, and for administrators those of all users. */
import { Link } from "wouter";
import { useState } from "react";
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, EmptyState, Time } from "@/components";
import { chatPath } from "@/platform/routes";
import { Loaded, readAll, Section, SettingsPage, Table, useResource, useSave } from "../frame";

type PublicLink = components["schemas"]["PublicLinkReply"];

export function OwnLinksPage() {
  return (
    <SettingsPage title="Public links" lead="Links by which everyone reads a chat of yours without an account. Make them in Share, in the menu of a chat.">
      <Links everyone={false} />
    </SettingsPage>
  );
}

export function AllLinksPage() {
  return (
    <SettingsPage title="Public links" lead="Links of all users by which everyone reads a chat without an account.">
      <Links everyone />
    </SettingsPage>
  );
}

function Links({ everyone }: { everyone: boolean }) {
  const role = useMe().data?.user.role;
  const links = useResource(["public-links", everyone], () => readAll((query) => api.GET("/api/v1/public-links", { query: { ...query, everyone } })));
  const heads = ["Chat", ...(everyone ? ["Owner"] : []), "Shows", "Made", "Ends", "Opened", ""];
  return (
    <Section title="Links">
      <Loaded query={links}>
        {(list) =>
          list.length === 0 ? (
            <EmptyState>No public links.</EmptyState>
          ) : (
            <Table label="Public links" heads={heads}>
              {list.map((link) => (
                <LinkRow key={link.id} link={link} withOwner={everyone} canRevoke={!everyone || role === "admin"} />
              ))}
            </Table>
          )
        }
      </Loaded>
    </Section>
  );
}

function LinkRow({ link, withOwner, canRevoke }: { link: PublicLink; withOwner: boolean; canRevoke: boolean }) {
  const [revoking, setRevoking] = useState(false);
  const revoke = useSave(() => api.DELETE("/api/v1/public-links/{public_link_id}", { path: { public_link_id: link.id } }), {
    refresh: [["public-links"]],
    done: "The link is revoked.",
    quiet: true,
  });
  const shows = ["texts", ...(link.with_tools ? ["tools"] : []), ...(link.with_files ? ["files"] : [])].join(", ");
  return (
    <tr>
      <td>
        <Link className="ui-link ui-strong" href={chatPath(link.chat_id)}>
          {link.chat_title}
        </Link>
      </td>
      {withOwner && <td>{link.owner_username}</td>}
      <td className="tone-muted">{shows}</td>
      <td>
        <Time at={link.created_at} />
      </td>
      <td>{new Date(link.expires_at).toLocaleDateString()}</td>
      <td>{link.last_read_at === null ? "never" : <Time at={link.last_read_at} />}</td>
      <td className="settings-right">
        {canRevoke && (
          <Button size="sm" onClick={() => setRevoking(true)}>
            Revoke
          </Button>
        )}
        <ConfirmDialog
          open={revoking}
          onOpenChange={setRevoking}
          title={`Revoke a link to “${link.chat_title}”?`}
          description="Whoever has it sees nothing more, at once."
          action="Revoke"
          onConfirm={() => revoke.mutateAsync(undefined)}
        />
      </td>
    </tr>
  );
}
