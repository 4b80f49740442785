CREATE TABLE read_model.events_per_day (
    day TEXT NOT NULL,
    type TEXT NOT NULL,
    events BIGINT NOT NULL,
    PRIMARY KEY (day, type)
);
