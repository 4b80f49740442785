CREATE TABLE read_model.balance (
    account TEXT PRIMARY KEY,
    cents BIGINT NOT NULL,
    -- The account's last event that is in it.
    version BIGINT NOT NULL
);
