/** The settings: a list of pages at the left, the chosen one beside it. Administrators see those of the server too. */
import { useQuery } from "@tanstack/react-query";
import {
  Activity,
  Bell,
  BookOpen,
  Brain,
  ChartColumn,
  ChevronLeft,
  CircleCheck,
  Cpu,
  Gauge,
  GitPullRequest,
  Globe,
  Key,
  Keyboard,
  KeyRound,
  Layers,
  Link2,
  type LucideIcon,
  MessageSquare,
  MessagesSquare,
  Package,
  Plug,
  ScrollText,
  Server,
  Shield,
  SlidersHorizontal,
  ToggleRight,
  TriangleAlert,
  User,
  Users,
  Webhook,
} from "lucide-react";
import { type ComponentType, lazy, Suspense } from "react";
import { Link, Redirect, Route, Switch as Routes, useLocation } from "wouter";
import { queryKeys, useMe } from "@/api/queries";
import { classes, ErrorBoundary, Icon, PhoneScreen, Skeleton } from "@/components";
import { useIsPhone } from "@/platform/media";
import { SETTINGS_PATH } from "./frame";

interface PageEntry {
  path: string;
  name: string;
  icon: LucideIcon;
  page: ComponentType;
}

function load<K extends string>(module: () => Promise<Record<K, ComponentType>>, name: K): ComponentType {
  return lazy<ComponentType>(async () => ({ default: (await module())[name] }));
}

const OWN: readonly PageEntry[] = [
  { path: "/settings/general", name: "General", icon: SlidersHorizontal, page: load(() => import("./own/general"), "GeneralPage") },
  { path: "/settings/account", name: "Account", icon: User, page: load(() => import("./own/account"), "AccountPage") },
  { path: "/settings/notifications", name: "Notifications", icon: Bell, page: load(() => import("./own/general"), "NotificationsPage") },
  { path: "/settings/keys", name: "Model keys", icon: KeyRound, page: load(() => import("./own/connections"), "UserKeysPage") },
  { path: "/settings/connections", name: "Connections", icon: Plug, page: load(() => import("./own/connections"), "ConnectionsPage") },
  { path: "/settings/skills", name: "Skills", icon: BookOpen, page: load(() => import("./own/skills"), "SkillsPage") },
  { path: "/settings/memory", name: "Memory", icon: Brain, page: load(() => import("./own/memory"), "MemoryPage") },
  { path: "/settings/tools", name: "Tool policy", icon: Shield, page: load(() => import("./policy/policy-pages"), "OwnPolicyPage") },
  { path: "/settings/tokens", name: "API tokens", icon: Key, page: load(() => import("./own/tokens"), "TokensPage") },
  { path: "/settings/links", name: "Public links", icon: Link2, page: load(() => import("./own/public-links"), "OwnLinksPage") },
  { path: "/settings/usage", name: "Usage", icon: Activity, page: load(() => import("./usage/usage"), "OwnUsagePage") },
  { path: "/settings/shortcuts", name: "Shortcuts", icon: Keyboard, page: load(() => import("./own/general"), "ShortcutsPage") },
];

const SERVER: readonly PageEntry[] = [
  { path: "/admin/providers", name: "Providers", icon: Globe, page: load(() => import("./server/providers"), "ProvidersPage") },
  { path: "/admin/models", name: "Models", icon: Layers, page: load(() => import("./server/models"), "ModelsPage") },
  { path: "/admin/mcp", name: "MCP servers", icon: Plug, page: load(() => import("./server/mcp"), "McpPage") },
  { path: "/admin/tools", name: "Tool policy", icon: Shield, page: load(() => import("./policy/policy-pages"), "ServerPolicyPage") },
  { path: "/admin/hooks", name: "Hooks", icon: Webhook, page: load(() => import("./server/hooks"), "HooksPage") },
  { path: "/admin/repositories", name: "Repositories", icon: GitPullRequest, page: load(() => import("./server/repositories"), "RepositoriesPage") },
  { path: "/admin/slack", name: "Slack", icon: MessagesSquare, page: load(() => import("./server/slack"), "SlackPage") },
  { path: "/admin/behaviour", name: "Behaviour", icon: ToggleRight, page: load(() => import("./server/behavior"), "BehaviorPage") },
  { path: "/admin/prompts", name: "Prompts", icon: MessageSquare, page: load(() => import("./server/behavior"), "PromptsPage") },
  { path: "/admin/limits", name: "Limits", icon: Gauge, page: load(() => import("./server/limits"), "LimitsPage") },
  { path: "/admin/usage", name: "Usage", icon: ChartColumn, page: load(() => import("./usage/usage"), "ServerUsagePage") },
  { path: "/admin/users", name: "Users", icon: User, page: load(() => import("./server/users"), "UsersPage") },
  { path: "/admin/groups", name: "Groups", icon: Users, page: load(() => import("./server/users"), "GroupsPage") },
  { path: "/admin/templates", name: "Templates", icon: Package, page: load(() => import("./server/templates"), "TemplatesPage") },
  { path: "/admin/credentials", name: "Credentials", icon: KeyRound, page: load(() => import("./own/host-credentials"), "SharedCredentialsPage") },
  { path: "/admin/runners", name: "Runners", icon: Server, page: load(() => import("./server/runners"), "RunnersPage") },
  { path: "/admin/workers", name: "Workers", icon: Cpu, page: load(() => import("./server/workers"), "WorkersPage") },
  { path: "/admin/links", name: "Public links", icon: Link2, page: load(() => import("./own/public-links"), "AllLinksPage") },
  { path: "/admin/audit", name: "Audit log", icon: ScrollText, page: load(() => import("./server/audit"), "AuditPage") },
];

export function SettingsPages() {
  const role = useMe().data?.user.role;
  const pages = role === "admin" || role === "viewer" ? [...OWN, ...SERVER] : OWN;
  const isPhone = useIsPhone();
  const [location] = useLocation();
  const atList = isPhone && location === SETTINGS_PATH;
  const list = (
    <nav className="sidebar-column" aria-label="Settings">
      <div className="sidebar-head">
        <Link className="sidebar-brand" href="/">
          <Icon of={ChevronLeft} />
          Back to chats
        </Link>
      </div>
      <div className="sidebar-tree settings-nav">
        <PageList title="You" pages={OWN} />
        {pages !== OWN && <PageList title="This server" pages={SERVER} />}
      </div>
      <ServerState />
    </nav>
  );
  return (
    <div className={classes("app-layout app-two-columns settings-page", atList && "is-at-list")}>
      {atList ? <PhoneScreen title="Settings">{list}</PhoneScreen> : list}
      <ErrorBoundary what="This page of the settings cannot be shown." resetKey={location} className="settings-main settings-error">
        <Suspense
          fallback={
            <main className="settings-main">
              <div className="settings-column">
                <Skeleton rows={5} />
              </div>
            </main>
          }
        >
          <Routes>
            {pages.map((entry) => (
              <Route key={entry.path} path={entry.path} component={entry.page} />
            ))}
            <Route>{role === undefined || atList ? null : <Redirect to="/settings/general" replace />}</Route>
          </Routes>
        </Suspense>
      </ErrorBoundary>
    </div>
  );
}

/** The list is longer than the window: its last pages are below. */
const intoView = (item: HTMLElement | null) => {
  if (item !== null && "scrollIntoView" in item) item.scrollIntoView({ block: "nearest" });
};

function PageList({ title, pages }: { title: string; pages: readonly PageEntry[] }) {
  const [location] = useLocation();
  return (
    <>
      <h2 className="sidebar-section">{title}</h2>
      <ul>
        {pages.map((entry) => {
          const current = location === entry.path;
          return (
            <li key={entry.path} ref={current ? intoView : null}>
              <Link href={entry.path} className={classes(current && "is-on")} aria-current={current ? "page" : undefined}>
                <Icon of={entry.icon} />
                {entry.name}
              </Link>
            </li>
          );
        })}
      </ul>
    </>
  );
}

// At the foot of the list: the server's version and whether it is ready.

interface Readiness {
  ready: boolean;
  version: string | null;
}

async function readReadiness(): Promise<Readiness> {
  const reply = await fetch("/readyz", { headers: { Accept: "application/json" } });
  const told: unknown = await reply.json().catch(() => null);
  const version = typeof told === "object" && told !== null && "version" in told && typeof told.version === "string" ? told.version : null;
  return { ready: reply.ok, version };
}

function ServerState() {
  const { data, error } = useQuery({ queryKey: queryKeys.readiness, queryFn: readReadiness, refetchInterval: 30_000 });
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
