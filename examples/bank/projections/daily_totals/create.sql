-- Days are ISO dates as text, which sort and compare alike in every database.
CREATE TABLE read_model.daily_totals (
    account TEXT NOT NULL,
    day TEXT NOT NULL,
    bookings BIGINT NOT NULL,
    reversals BIGINT NOT NULL,
    cents BIGINT NOT NULL,
    PRIMARY KEY (account, day)
);
CREATE INDEX daily_totals_day ON read_model.daily_totals (day);

-- Where a reversal finds the day and the amount of what it takes back.
CREATE TABLE read_model.daily_bookings (
    account TEXT NOT NULL,
    booking TEXT NOT NULL,
    day TEXT NOT NULL,
    cents BIGINT NOT NULL,
    PRIMARY KEY (account, booking)
);
