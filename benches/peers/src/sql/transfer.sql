CREATE TABLE accounts (account bigint PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 80);

-- Rows are locked in the order of their numbers, so that two transfers never wait for each other.
CREATE FUNCTION transfer(
  payer bigint, payee bigint, amount bigint, OUT payer_balance bigint, OUT payee_balance bigint
) LANGUAGE plpgsql AS $$
BEGIN
  IF payer < payee THEN
    UPDATE accounts SET balance = balance - amount WHERE account = payer RETURNING balance INTO payer_balance;
    UPDATE accounts SET balance = balance + amount WHERE account = payee RETURNING balance INTO payee_balance;
  ELSE
    UPDATE accounts SET balance = balance + amount WHERE account = payee RETURNING balance INTO payee_balance;
    UPDATE accounts SET balance = balance - amount WHERE account = payer RETURNING balance INTO payer_balance;
  END IF;
  IF payer_balance < 0 THEN
    RAISE EXCEPTION 'the balance is smaller than the amount' USING ERRCODE = 'RP001';
  END IF;
END $$;
