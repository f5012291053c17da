-- A turn ended and a queued message goes on: webhooks are told so, browsers are told at the end only.
ALTER TABLE webhook_deliveries ADD COLUMN more boolean NOT NULL DEFAULT false;
