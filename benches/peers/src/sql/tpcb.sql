CREATE TABLE branches (branch_id int PRIMARY KEY, balance bigint NOT NULL, filler char(84)) WITH (fillfactor = 50);
CREATE TABLE tellers (teller_id int PRIMARY KEY, branch_id int NOT NULL, balance bigint NOT NULL, filler char(80))
  WITH (fillfactor = 50);
CREATE TABLE accounts (account_id int PRIMARY KEY, branch_id int NOT NULL, balance bigint NOT NULL, filler char(80))
  WITH (fillfactor = 80);
CREATE TABLE history (
  branch_id int, teller_id int, account_id int, delta bigint, time timestamptz, filler char(18)
);

-- The account is locked before the teller and the branch, so that two bookings never wait for each other.
CREATE FUNCTION account_update(branch int, teller int, account int, booked bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  held bigint;
BEGIN
  UPDATE accounts SET balance = balance + booked WHERE account_id = account RETURNING balance INTO held;
  UPDATE tellers SET balance = balance + booked WHERE teller_id = teller;
  UPDATE branches SET balance = balance + booked WHERE branch_id = branch;
  INSERT INTO history VALUES (branch, teller, account, booked, now(), '-');
  RETURN held;
END $$;
