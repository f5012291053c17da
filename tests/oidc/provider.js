// A certified OpenID provider for tests. Arguments: its port, and the redirect URI of the client.
// The login name is the subject and the email, and tells what the claims are.
import { Provider } from "oidc-provider";

const [port, redirectUri] = process.argv.slice(2);
const groupsOf = (login) => (login.startsWith("ops") ? ["ops", "Crew"] : ["Crew"]);

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: "chatd",
      client_secret: "a client secret with signs: + / %",
      redirect_uris: [redirectUri],
      grant_types: ["authorization_code"],
      response_types: ["code"],
    },
  ],
  claims: {
    openid: ["sub"],
    email: ["email", "email_verified"],
    profile: ["name", "preferred_username"],
    groups: ["groups"],
  },
  pkce: { required: () => true },
  findAccount: (_context, login) => ({
    accountId: login,
    claims: () => ({
      sub: login,
      email: login,
      email_verified: !login.startsWith("unverified"),
      name: "Ada Lovelace",
      preferred_username: login.split("@")[0],
      groups: groupsOf(login),
    }),
  }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
