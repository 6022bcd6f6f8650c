CREATE TABLE warehouse (w_id smallint PRIMARY KEY, w_tax smallint NOT NULL, w_filler text);
CREATE TABLE district (
  d_w_id smallint, d_id smallint, d_tax smallint NOT NULL, d_next_o_id int NOT NULL, d_filler text,
  PRIMARY KEY (d_w_id, d_id)
) WITH (fillfactor = 50);
CREATE TABLE customer (
  c_w_id smallint, c_d_id smallint, c_id int, c_discount smallint NOT NULL, c_last text NOT NULL, c_credit char(2) NOT NULL,
  c_filler text, PRIMARY KEY (c_w_id, c_d_id, c_id)
);
CREATE TABLE item (i_id int PRIMARY KEY, i_price bigint NOT NULL, i_name text NOT NULL, i_data text NOT NULL);
CREATE TABLE stock (
  s_w_id smallint, s_i_id int, s_quantity smallint NOT NULL, s_order_cnt int NOT NULL, s_remote_cnt int NOT NULL,
  s_ytd bigint NOT NULL, s_dist char(24)[] NOT NULL, s_data text NOT NULL, PRIMARY KEY (s_w_id, s_i_id)
) WITH (fillfactor = 80);
CREATE TABLE orders (
  o_w_id smallint, o_d_id smallint, o_id int, o_c_id int NOT NULL, o_entry_d timestamptz NOT NULL, o_carrier_id smallint,
  o_ol_cnt smallint NOT NULL, o_all_local boolean NOT NULL, PRIMARY KEY (o_w_id, o_d_id, o_id)
);
CREATE INDEX orders_of_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);
CREATE TABLE new_order (no_w_id smallint, no_d_id smallint, no_o_id int, PRIMARY KEY (no_w_id, no_d_id, no_o_id));
CREATE TABLE order_line (
  ol_w_id smallint, ol_d_id smallint, ol_o_id int, ol_number smallint, ol_i_id int NOT NULL, ol_supply_w_id smallint NOT NULL,
  ol_delivery_d timestamptz, ol_quantity smallint NOT NULL, ol_amount bigint NOT NULL, ol_dist_info char(24) NOT NULL,
  PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)
);

-- The district is locked first, then stock in the order of the lines, so that two orders never wait for each other.
CREATE FUNCTION place_order(
  w smallint, d smallint, c int, item_ids int[], suppliers smallint[], quantities smallint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  warehouse_tax smallint;
  district_tax smallint;
  discount smallint;
  customer_name text;
  credit text;
  order_id int;
  price bigint;
  item_name text;
  item_data text;
  stock_data text;
  district_info text;
  amount bigint;
  total bigint := 0;
BEGIN
  SELECT w_tax INTO warehouse_tax FROM warehouse WHERE w_id = w;
  UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d
    RETURNING d_next_o_id - 1, d_tax INTO order_id, district_tax;
  SELECT c_discount, c_last, c_credit INTO discount, customer_name, credit FROM customer
    WHERE c_w_id = w AND c_d_id = d AND c_id = c;
  INSERT INTO orders VALUES (w, d, order_id, c, now(), NULL, cardinality(item_ids), w = ALL (suppliers));
  INSERT INTO new_order VALUES (w, d, order_id);
  FOR line IN 1 .. cardinality(item_ids) LOOP
    SELECT i_price, i_name, i_data INTO price, item_name, item_data FROM item WHERE i_id = item_ids[line];
    IF NOT FOUND THEN
      RAISE EXCEPTION 'Item number is not valid' USING ERRCODE = 'RP001';
    END IF;
    UPDATE stock SET
        s_quantity = s_quantity - quantities[line] + CASE WHEN s_quantity >= quantities[line] + 10 THEN 0 ELSE 91 END,
        s_ytd = s_ytd + quantities[line],
        s_order_cnt = s_order_cnt + 1,
        s_remote_cnt = s_remote_cnt + (suppliers[line] <> w)::int
      WHERE s_w_id = suppliers[line] AND s_i_id = item_ids[line]
      RETURNING s_data, s_dist[d] INTO stock_data, district_info;
    amount := quantities[line] * price;
    total := total + amount;
    INSERT INTO order_line VALUES (
      w, d, order_id, line, item_ids[line], suppliers[line], NULL, quantities[line], amount, district_info
    );
  END LOOP;
  RETURN (total * (10000 - discount) * (10000 + warehouse_tax + district_tax) + 50000000) / 100000000;
END $$;
