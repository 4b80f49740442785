CREATE TABLE read_model.cart_totals (
    cart_id TEXT PRIMARY KEY,
    items BIGINT NOT NULL,
    history TEXT NOT NULL
);
