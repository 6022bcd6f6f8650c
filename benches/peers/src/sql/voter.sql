CREATE TABLE contestants (contestant_number int PRIMARY KEY, contestant_name text NOT NULL);
CREATE TABLE area_codes (area_code int PRIMARY KEY, state char(2) NOT NULL);
CREATE TABLE votes (
  phone_number bigint, vote_number int, contestant_number int NOT NULL, state char(2) NOT NULL,
  PRIMARY KEY (phone_number, vote_number)
);
CREATE TABLE vote_counts (
  contestant_number int, area_code int, state char(2) NOT NULL, votes bigint NOT NULL,
  PRIMARY KEY (contestant_number, area_code)
) WITH (fillfactor = 50);

CREATE FUNCTION vote(phone bigint, contestant int, most bigint) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  area int := phone / 10000000;
  state_of_area char(2);
  numbered int;
BEGIN
  IF NOT EXISTS (SELECT FROM contestants WHERE contestant_number = contestant) THEN
    RETURN 1;
  END IF;
  SELECT state INTO state_of_area FROM area_codes WHERE area_code = area;
  -- The first vote of a phone is the usual one, and its row is the look-up.
  INSERT INTO votes VALUES (phone, 1, contestant, state_of_area) ON CONFLICT DO NOTHING;
  WHILE NOT FOUND LOOP
    SELECT count(*) INTO numbered FROM votes WHERE phone_number = phone;
    IF numbered >= most THEN
      RETURN 1;
    END IF;
    INSERT INTO votes VALUES (phone, numbered + 1, contestant, state_of_area) ON CONFLICT DO NOTHING;
  END LOOP;
  INSERT INTO vote_counts AS counts VALUES (contestant, area, state_of_area, 1)
    ON CONFLICT (contestant_number, area_code) DO UPDATE SET votes = counts.votes + 1;
  RETURN 0;
END $$;
