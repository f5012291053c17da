/** Who the user is in Slack: links, and a code that makes one. */
import { Trash2 } from "lucide-react";
import { useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Dialog, EmptyState, IconButton, Time } from "@/components";
import { Loaded, readAll, Section, useResource, useSave } from "../frame";
import { ShownSecret } from "./tokens";

type SlackLink = components["schemas"]["OwnSlackLink"];

const KEY = ["slack-links"];

export function SlackLinks() {
  const links = useResource(KEY, () => readAll((query) => api.GET("/api/v1/slack-links", { query })));
  const code = useSave(() => api.POST("/api/v1/slack-links/code", {}), { refresh: [] });
  return (
    <Section
      title="Slack"
      end={
        <Button busy={code.isPending} onClick={() => code.mutate(undefined)}>
          Link your Slack
        </Button>
      }
    >
      <p className="settings-section-lead">The bot of chatd in Slack acts for you only if you have linked yourself by a code.</p>
      <Loaded query={links}>
        {(list) =>
          list.length === 0 ? (
            <EmptyState>Not linked.</EmptyState>
          ) : (
            <div className="settings-card">
              {list.map((one) => (
                <LinkRow key={one.id} link={one} />
              ))}
            </div>
          )
        }
      </Loaded>
      {code.data !== undefined && (
        <Dialog
          open
          onOpenChange={() => code.reset()}
          title="Send this to the bot"
          description="As a direct message in Slack, within ten minutes. Show it to nobody: whoever sends it acts as you."
          footer={
            <Button variant="primary" onClick={() => code.reset()}>
              Done
            </Button>
          }
        >
          <ShownSecret text={`link ${code.data.code}`} label="Copy the message" />
        </Dialog>
      )}
    </Section>
  );
}

function LinkRow({ link }: { link: SlackLink }) {
  const [deleting, setDeleting] = useState(false);
  const name = link.slack_name || link.slack_user;
  const remove = useSave(() => api.DELETE("/api/v1/slack-links/{slack_link_id}", { path: { slack_link_id: link.id } }), { refresh: [KEY], quiet: true });
  return (
    <div className="settings-row">
      <div className="ui-grow">
        <div className="ui-strong">{name}</div>
        <p className="tone-muted">
          In {link.team_name || link.connection_name}. Linked <Time at={link.created_at} />.
        </p>
      </div>
      <IconButton icon={Trash2} label={`Unlink ${name}`} onClick={() => setDeleting(true)} />
      <ConfirmDialog
        open={deleting}
        onOpenChange={setDeleting}
        title={`Unlink ${name}?`}
        description="This person of Slack no longer acts as you. Your chats stay."
        action="Unlink"
        onConfirm={() => remove.mutateAsync(undefined)}
      />
    </div>
  );
}
