DROP TABLE penstock_mailbox_feeds;
DROP TABLE penstock_mailbox_subscriptions;
